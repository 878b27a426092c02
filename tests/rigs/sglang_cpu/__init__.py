"""Real SGLang on a machine without a GPU, see rig.py: built with build.sh, else skipped with the reason."""
