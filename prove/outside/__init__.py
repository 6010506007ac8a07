"""The stage of outside effects: calls to a real sink, under kills and freezes."""
