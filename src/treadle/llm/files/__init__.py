"""Files of language models: directories of safetensors and GGUF, read as one kind of checkpoint."""
