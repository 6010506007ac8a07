"""Small exhaustive models of the protocols, each rule with the trace that goes wrong without it."""
