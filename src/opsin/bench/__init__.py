"""One honest client for everything we measure: a workload of pictures, a load, records, and numbers made from records.

    config ─▶ workload ─▶ bodies ─▶ run ═▶ worker ─▶ client ─▶ reading ─▶ Record ─▶ summary ─▶ show
                                    run ─▶ sampling, counters (the server, from outside)

A sibling of the server: it speaks HTTP to whatever is measured and imports nothing of gateway, engine or media.
"""
