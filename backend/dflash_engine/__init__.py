"""Reference engine: DFlash, DDTree and sliding windows in numpy, behind SGLang's HTTP surface."""
