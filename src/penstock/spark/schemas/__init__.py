"""Columns of records with schemas of the AWS Glue Schema Registry."""
