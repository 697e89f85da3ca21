"""The main job: a real model, compiled, checked, timed and reported."""
