"""Operator memory: what each operator call allocates and frees, in which module and phase.

======================  ======================================================================
:mod:`.recording`       record a piece of code
:mod:`.mode`            what runs at every operator
:mod:`.places`          in which module and phase it runs
:mod:`.storages`        counting without a recorder: fake tensors, unknown devices
:mod:`.rows`            turns notes and calls into rows that add up
:mod:`.record`          the finished record
:mod:`.table`           tables, checks and files of a record
:mod:`.summaries`       rows as tables
:mod:`.limits`          budgets of phases and modules
:mod:`.compare`         what grew between two runs
:mod:`.table_files`           JSON
:mod:`.picture`         plots levels over operator calls
======================  ======================================================================

PYTEST_DONT_REWRITE
"""
