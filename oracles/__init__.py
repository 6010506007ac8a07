"""What senders' own libraries say of a request, held against what Onceward says."""
