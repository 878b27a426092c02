"""SGLang plugin for the GPU host. Importing this package needs neither torch nor sglang."""
