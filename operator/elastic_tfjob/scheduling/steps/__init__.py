"""Steps that profiles are composed of, and what several of them use."""
