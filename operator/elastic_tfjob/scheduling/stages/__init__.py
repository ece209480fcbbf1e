"""Policies, one file each, by the stage they are for."""
