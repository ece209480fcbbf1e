"""Allocate: how many replicas each job gets."""
