"""The Kubernetes operator of Retire."""
