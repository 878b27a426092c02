"""Terminal console for SGLang servers with DFlash and DDTree: the Textual app and the command line."""
