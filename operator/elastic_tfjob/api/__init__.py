"""The words users write: TFJob models, the table of annotations, the operator's configuration."""
