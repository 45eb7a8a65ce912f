"""A handler is deployed with a bug: what it cannot handle goes into a file. The bug is fixed, and the file put back."""

import json

from user_programs import Orders, once

HANDLER = r"""
    import json
    import logging
    import sys

    from penstock import Consumer, Producer

    logging.basicConfig(level="INFO")

    def amount_of(text):
        return int(text.split()[1])

    def handle(batch):
        for record in batch:
            text = record.data.decode()
            BUG
            print(text + "\n", end="", flush=True)

    def put_aside(batch, error):
        with open("dead-letters.jsonl", "a") as file:
            for record in batch:
                line = {"key": record.partition_key, "data": record.data.decode(), "error": str(error)}
                file.write(json.dumps(line) + "\n")

    Consumer(
        stream="orders",
        application="billing",
        handler=handle,
        starting_position="TRIM_HORIZON",
        on_failure="dead_letter",
        dead_letter=put_aside,
        handler_retries_max=1,  # the bug is there at each attempt
    ).run()
"""
BUGGY = HANDLER.replace("BUG", 'if amount_of(text) % 25 == 0: raise ValueError(f"cannot bill {text}")')
FIXED = HANDLER.replace("BUG", "amount_of(text)")
PUT_BACK = """
    import json

    from penstock import Producer

    with Producer(stream="orders") as producer, open("dead-letters.jsonl") as file:
        for line in file:
            letter = json.loads(line)
            producer.put(letter["data"].encode(), partition_key=letter["key"])
"""


def test_dead_letters_are_put_back_when_the_bug_is_fixed(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(200)
    buggy = programs.start(BUGGY, name="buggy")
    programs.wait_for_lines(192)
    assert buggy.terminate() == 0
    lines = (tmp_path / "dead-letters.jsonl").read_text(encoding="utf-8").splitlines()
    letters = [json.loads(line) for line in lines]
    assert sorted(int(letter["data"].split()[1]) for letter in letters) == list(range(0, 200, 25))
    assert {letter["error"] for letter in letters} == {f"cannot bill {letter['data']}" for letter in letters}

    # A batch of which one record fails is repeated, so the buggy consumer printed some orders more than once.
    handled = set(programs.printed())
    fixed = programs.start(FIXED, name="fixed")
    assert programs.start(PUT_BACK, name="put-back").wait() == 0
    orders.put(50)
    programs.wait_for(orders)
    assert fixed.terminate() == 0
    assert set(programs.printed()) == set(orders.texts)
    # The fixed one got the dead letters and what is new, each exactly once.
    again = {text: 1 for text in once(orders) if text not in handled}
    assert {text: fixed.lines().count(text) for text in fixed.lines()} == again
