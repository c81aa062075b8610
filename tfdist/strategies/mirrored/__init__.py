"""The backend `mirrored`: several devices of one process."""
