"""Reads API objects, annotations, pod reports and the ConfigMap as typed values."""
