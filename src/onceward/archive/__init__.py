"""The archive: old payloads as Parquet files, in a folder or an S3-compatible object store."""
