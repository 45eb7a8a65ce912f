"""The service, over boto3: the only package that imports the SDK."""
