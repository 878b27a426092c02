"""What is known about SGLang: versions, options, and readers of what it prints."""
