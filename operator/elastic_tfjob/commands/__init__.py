"""Commands that act with the user's own rights: list, explain and forecast jobs, check, convert and change them."""
