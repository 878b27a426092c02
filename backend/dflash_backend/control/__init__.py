"""Control: plans, decisions, actions and their log."""
