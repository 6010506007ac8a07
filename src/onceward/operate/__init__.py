"""Operating an inbox: lists, operator actions and maintenance."""
