"""Back ends: what turns instructions into something that runs."""
