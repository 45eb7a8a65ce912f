"""The service, over boto3: the only package that knows the SDK."""
