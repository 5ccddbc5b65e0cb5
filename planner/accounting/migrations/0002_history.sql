-- A gang that came, by what its groups ask for (JSON): recent demand is worked
-- out from the last ones.
CREATE TABLE arrival (
  submitted INTEGER NOT NULL,               -- milliseconds
  gang      TEXT    NOT NULL,               -- namespace/job
  shapes    TEXT    NOT NULL,
  PRIMARY KEY (submitted, gang)
) STRICT, WITHOUT ROWID;

-- A gang that completed, by how long its ranks ran: run times are foretold from
-- the last ones.
CREATE TABLE run (
  ended INTEGER NOT NULL,                   -- milliseconds
  gang  TEXT    NOT NULL,
  queue INTEGER NOT NULL REFERENCES name,
  user  INTEGER NOT NULL REFERENCES name,
  cards INTEGER NOT NULL,
  ran   INTEGER NOT NULL,                   -- milliseconds, without what was lost
  PRIMARY KEY (ended, gang)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER arrival_kept BEFORE UPDATE ON arrival BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER arrival_stays BEFORE DELETE ON arrival BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER run_kept BEFORE UPDATE ON run BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER run_stays BEFORE DELETE ON run BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
