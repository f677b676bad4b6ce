"""Text from language models: graphs that compute new tokens beside a cache, sampling, and the loop over tokens."""
