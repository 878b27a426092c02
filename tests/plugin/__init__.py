"""Tests of the SGLang plugin: what it decides, what it does to a real SGLang, how it is installed."""
