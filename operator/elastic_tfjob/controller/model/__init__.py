"""Typed reading of API objects, annotations, pod reports and the ConfigMap."""
