"""The main job: real flights through the embedded Kinesis and Spark, reshard and kills included, verified at the end."""
