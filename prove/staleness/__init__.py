"""The stage of versions: events out of order, under kills, end in one state."""
