-- What a later 1.x may have added to a ledger: columns, a table, an index, a key, kinds, codes, subjects, words and data.
ALTER TABLE events ADD COLUMN seen_by TEXT NOT NULL DEFAULT 'nobody';
ALTER TABLE checkpoint ADD COLUMN seen_by TEXT NOT NULL DEFAULT 'nobody';
CREATE TABLE forecasts (gpu TEXT PRIMARY KEY, odds REAL NOT NULL);
CREATE INDEX by_kind ON events (kind);
INSERT INTO meta VALUES ('forecast', '{"next": "week"}');
UPDATE meta SET value = '1.9' WHERE key = 'schema';
INSERT INTO events (era, kind, boot_id, boottime, wall, code, subject, detail, data, seen_by) VALUES
    (1, 'foretold', 'b1', 20, 1790000020, 'gpu', 'gpu/0000:1b:00.0', '', '{"odds": 0.5}', 'oracle'),
    (1, 'raised', 'b1', 21, 1790000021, 'gpu_melted', 'gpu/0000:1b:00.0', '', '{"severity": "doom"}', 'oracle'),
    (1, 'latched', 'b1', 22, 1790000022, 'gpu_melted', 'gpu/0000:1b:00.0', '', '{}', 'oracle'),
    (1, 'xid', 'b1', 23, 1790000023, 'xid', 'tray/7/gpu/2', '79', '{"count": {"of": [1]}, "mood": "grim"}', 'oracle'),
    (1, 'excluded', 'b1', 24, 1790000024, '', '', '', '{"actuator": "moon", "why": "eclipse", "tides": 3}', 'oracle');
