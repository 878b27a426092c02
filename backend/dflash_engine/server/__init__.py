"""The engine behind SGLang's HTTP surface: a separate process with SGLang's flag spellings."""
