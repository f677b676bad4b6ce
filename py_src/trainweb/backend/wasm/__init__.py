"""The WebAssembly back end: memory plan, encoding, code generation, engines."""
