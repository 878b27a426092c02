"""The terminal user interface: screens that render frozen samples and ask one place what is allowed."""
