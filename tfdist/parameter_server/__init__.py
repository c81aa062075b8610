"""Asynchronous training: variables on parameter servers, workers that do not wait."""
