"""The same questions over the same inferences, put to others: JSONB in Postgres, MLflow."""
