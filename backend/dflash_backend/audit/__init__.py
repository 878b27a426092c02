"""The window audit: what a drafter declares, what each layer attends to, what stays cached, with proof."""
