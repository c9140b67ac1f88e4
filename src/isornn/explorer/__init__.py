"""A local page with sliders for the hyper-parameters of a cell, which shows the theory's results at once.

`serve` of `isornn.explorer.server` shows it; it needs the extra ``isornn[explore]``. What the page asks for are pure
functions, `isornn.explorer.work`; everything it shows can be had from `isornn.theory` too.
"""
