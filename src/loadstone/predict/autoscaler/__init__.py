"""Autoscalers: their laws, their files, and a cell on replicas that come and go."""
