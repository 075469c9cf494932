BEGIN TRANSACTION;
CREATE TABLE checkpoint (
        era INTEGER NOT NULL, number INTEGER NOT NULL, 
    kind TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    boottime REAL NOT NULL,
    wall REAL NOT NULL,
    code TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    data TEXT NOT NULL
, PRIMARY KEY (era, number)
    ) WITHOUT ROWID;
INSERT INTO "checkpoint" VALUES(1,0,'boot','b1',1.0,1790000001.0,'','','','{}');
INSERT INTO "checkpoint" VALUES(1,1,'gpu_pinned','b1',2.0,1790000002.0,'gpu','gpu/0000:1b:00.0','','{"uuid":"GPU-1","name":"NVIDIA H100 80GB HBM3","serial":"165","links":3}');
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, era INTEGER NOT NULL, 
    kind TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    boottime REAL NOT NULL,
    wall REAL NOT NULL,
    code TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    data TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1,'boot','b1',1.0,1790000001.0,'','','','{}');
INSERT INTO "events" VALUES(2,1,'gpu_pinned','b1',2.0,1790000002.0,'gpu','gpu/0000:1b:00.0','','{"uuid":"GPU-1","name":"NVIDIA H100 80GB HBM3","serial":"165","links":3}');
INSERT INTO "events" VALUES(3,1,'xid','b1',4.0,1790000004.0,'xid','gpu/0000:1b:00.0','31','{"count":1,"text":"NVRM: Xid (PCI:0000:1b:00): 31, pid=7","history":false,"sequence":10,"source":"kernel_log"}');
INSERT INTO "events" VALUES(4,1,'acknowledged','b1',5.0,1790000005.0,'xid','gpu/0000:1b:00.0','31','{}');
INSERT INTO "events" VALUES(5,1,'xid','b1',6.0,1790000006.0,'xid','gpu/0000:1b:00.0','79','{"count":1,"text":"NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.","history":false,"sequence":11,"source":"kernel_log"}');
INSERT INTO "events" VALUES(6,1,'raised','b1',7.0,1790000007.0,'xid','gpu/0000:1b:00.0','79','{"severity":"failure","advice":"reboot","latch":"reboot","count":1,"text":"NVRM: Xid (PCI:0000:1b:00): 79"}');
INSERT INTO "events" VALUES(7,1,'latched','b1',8.0,1790000008.0,'xid','gpu/0000:1b:00.0','79','{}');
INSERT INTO "events" VALUES(8,1,'health','b1',8.0,1790000008.0,'','','','{"to":"failure"}');
INSERT INTO "events" VALUES(9,1,'intended','b1',9.0,1790000009.0,'','','','{"actuator":"slurm","intent":"exclude","why":"failure","reason":"gpuwarden: xid 79","key":"k1"}');
INSERT INTO "events" VALUES(10,1,'outcome','b1',10.0,1790000010.0,'','','','{"actuator":"slurm","key":"k1","result":"done"}');
INSERT INTO "events" VALUES(11,1,'excluded','b1',11.0,1790000011.0,'','','','{"actuator":"slurm","why":"failure","reason":"gpuwarden: xid 79","since":1790000010.0}');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('checkpoint_through','2');
INSERT INTO "meta" VALUES('created','1790000000.0');
INSERT INTO "meta" VALUES('era','1');
INSERT INTO "meta" VALUES('kernel_log_boot_id','b1');
INSERT INTO "meta" VALUES('kernel_log_sequence','12');
INSERT INTO "meta" VALUES('machine','{"dmi": "4c4c4544-0000-0000-0000-000000000001", "machine_id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "instance": ""}');
INSERT INTO "meta" VALUES('schema','1.0');
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',11);
COMMIT;
