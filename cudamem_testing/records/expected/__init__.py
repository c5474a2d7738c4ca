"""Expected text kept beside the test: compared on every run, rewritten on request.

A check compares a text with the string literal written at its call::

    table.assert_text('''
        rows  bytes
           2  1.0 MiB
        ''')

On a mismatch it raises `TextMismatchError` with a diff. With ``Session(accept=True)`` it collects the new
text instead, and `Session.write` puts all of them into the source files at the end of the run.

The pieces, one module each: `text` says when two texts are the same, `difference` shows how they differ,
`callsite` says where a call stands, `source` finds its literal in the file, `literal` spells a text as
Python source, `edits` collects and writes, `side` names the files for texts of calls without an argument, `session`
ties them to a run, and `check` is what result objects call. `checked` is what a report keeps of a check, and
`accept` takes texts from there.

PYTEST_DONT_REWRITE
"""
