"""The SGLang plugin on a host: install, status, uninstall."""
