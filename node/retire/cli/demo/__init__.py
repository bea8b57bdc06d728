"""The demo: one agent story, told with Retire and with abort + resend, on a real model and vLLM."""
