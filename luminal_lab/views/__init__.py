"""Views: pure functions from a stage object to HTML, SVG, DOT, a figure or a table.

They compute nothing of the engine, and the engine reaches them only by name when a front end
asks how an object looks.
"""
