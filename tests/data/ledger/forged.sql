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
INSERT INTO "events" VALUES(1,1,'boot','b1',1000.0,1790001000.0,'','','','{}');
INSERT INTO "events" VALUES(2,1,'gpu_pinned','b1',1000.0,1790001000.0,'gpu','gpu/0000:10:00.0','','{"uuid":"GPU-00000000","name":"NVIDIA H100 80GB HBM3","serial":"1650","links":262143}');
INSERT INTO "events" VALUES(3,1,'gpu_pinned','b1',1000.0,1790001000.0,'gpu','gpu/0000:11:00.0','','{"uuid":"GPU-00000001","name":"NVIDIA H100 80GB HBM3","serial":"1651","links":262143}');
INSERT INTO "events" VALUES(4,1,'gpu_pinned','b1',1000.0,1790001000.0,'gpu','gpu/0000:12:00.0','','{"uuid":"GPU-00000002","name":"NVIDIA H100 80GB HBM3","serial":"1652","links":262143}');
INSERT INTO "events" VALUES(5,1,'gpu_pinned','b1',1000.0,1790001000.0,'gpu','gpu/0000:13:00.0','','{"uuid":"GPU-00000003","name":"NVIDIA H100 80GB HBM3","serial":"1653","links":262143}');
INSERT INTO "events" VALUES(6,1,'health','b1',1000.0,1790001000.0,'','','','{"from":"unknown","to":"healthy","reasons":""}');
INSERT INTO "events" VALUES(7,1,'xid','b1',1000.0,1790001000.0,'xid','gpu/0000:10:00.0','95','{"count":1,"text":"forged","history":false,"facility":3,"sequence":1,"source":"kernel_log"}');
INSERT INTO "events" VALUES(8,1,'xid','b1',1000.0,1790001000.0,'xid','gpu/0000:11:00.0','95','{"count":1,"text":"an error","history":false,"sequence":2,"source":"kernel_log"}');
INSERT INTO "events" VALUES(9,1,'xid','b1',1000.0,1790001000.0,'xid','gpu/0000:12:00.0','95','{"count":1,"text":"an error","history":false,"sequence":3,"source":"kernel_log"}');
INSERT INTO "events" VALUES(10,1,'xid','b1',1000.0,1790001000.0,'xid','gpu/0000:13:00.0','95','{"count":1,"text":"an error","history":false,"sequence":4,"source":"kernel_log"}');
INSERT INTO "events" VALUES(11,1,'sxid','b1',1000.0,1790001000.0,'sxid','switch/0000:05:00.0','20034','{"count":1,"text":"Fatal","history":false,"facility":1,"sequence":5,"fatal":true}');
INSERT INTO "events" VALUES(12,1,'aer','b1',1000.0,1790001000.0,'pcie_aer_fatal','gpu/0000:11:00.0','','{"count":1,"text":"forged","history":false,"facility":1,"sequence":6}');
INSERT INTO "events" VALUES(13,1,'raised','b1',1000.0,1790001000.0,'xid','gpu/0000:10:00.0','95','{"xid":95,"meaning":"Uncontained memory error: all applications on the GPU are affected","text":"forged","written_by":"a process, not the kernel (facility 3)","count":1,"severity":"failure","advice":"reset_gpu","latch":"reset","first_boottime":1000.0,"first_wall":1790001000.0}');
INSERT INTO "events" VALUES(14,1,'raised','b1',1000.0,1790001000.0,'xid','gpu/0000:11:00.0','95','{"xid":95,"meaning":"Uncontained memory error: all applications on the GPU are affected","text":"an error","count":1,"severity":"failure","advice":"reset_gpu","latch":"reset","first_boottime":1000.0,"first_wall":1790001000.0}');
INSERT INTO "events" VALUES(15,1,'raised','b1',1000.0,1790001000.0,'xid','gpu/0000:12:00.0','95','{"xid":95,"meaning":"Uncontained memory error: all applications on the GPU are affected","text":"an error","count":1,"severity":"failure","advice":"reset_gpu","latch":"reset","first_boottime":1000.0,"first_wall":1790001000.0}');
INSERT INTO "events" VALUES(16,1,'raised','b1',1000.0,1790001000.0,'xid','gpu/0000:13:00.0','95','{"xid":95,"meaning":"Uncontained memory error: all applications on the GPU are affected","text":"an error","count":1,"severity":"failure","advice":"reset_gpu","latch":"reset","first_boottime":1000.0,"first_wall":1790001000.0}');
INSERT INTO "events" VALUES(17,1,'raised','b1',1000.0,1790001000.0,'sxid','switch/0000:05:00.0','20034','{"sxid":20034,"meaning":"Link: fault, the link went down","text":"Fatal","written_by":"a process, not the kernel (facility 1)","count":1,"severity":"failure","advice":"reboot","latch":"reboot","first_boottime":1000.0,"first_wall":1790001000.0}');
INSERT INTO "events" VALUES(18,1,'raised','b1',1000.0,1790001000.0,'pcie_aer_fatal','gpu/0000:11:00.0','','{"text":"forged","written_by":"a process, not the kernel (facility 1)","count":1,"severity":"warning","advice":"inspect_hardware","latch":"none","first_boottime":1000.0,"first_wall":1790001000.0}');
INSERT INTO "events" VALUES(19,1,'health','b1',1000.0,1790001000.0,'','','','{"from":"healthy","to":"failure","reasons":"sxid.20034 xid.95 pcie_aer_fatal"}');
INSERT INTO "events" VALUES(20,1,'latched','b1',1015.0,1790001015.0,'xid','gpu/0000:10:00.0','95','{}');
INSERT INTO "events" VALUES(21,1,'latched','b1',1015.0,1790001015.0,'xid','gpu/0000:11:00.0','95','{}');
INSERT INTO "events" VALUES(22,1,'latched','b1',1015.0,1790001015.0,'xid','gpu/0000:12:00.0','95','{}');
INSERT INTO "events" VALUES(23,1,'latched','b1',1015.0,1790001015.0,'xid','gpu/0000:13:00.0','95','{}');
INSERT INTO "events" VALUES(24,1,'latched','b1',1015.0,1790001015.0,'sxid','switch/0000:05:00.0','20034','{}');
INSERT INTO "events" VALUES(25,1,'xid','b1',1045.0,1790001045.0,'xid','gpu/0000:11:00.0','154','{"count":1,"text":"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)","history":false,"facility":3,"sequence":7,"source":"kernel_log","signs":"to 0"}');
INSERT INTO "events" VALUES(26,1,'reset','b1',1045.0,1790001045.0,'gpu','gpu/0000:11:00.0','','{"ok":true,"text":"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"}');
INSERT INTO "events" VALUES(27,1,'reset','b1',1050.0,1790001050.0,'gpu','gpu/0000:12:00.0','','{"ok":true,"text":"reset done"}');
INSERT INTO "events" VALUES(28,1,'xid','b1',1050.0,1790001050.0,'xid','gpu/0000:13:00.0','154','{"count":1,"text":"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)","history":false,"sequence":9,"source":"kernel_log","signs":"to 0"}');
INSERT INTO "events" VALUES(29,1,'reset','b1',1050.0,1790001050.0,'gpu','gpu/0000:13:00.0','','{"ok":true,"text":"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"}');
INSERT INTO "events" VALUES(30,1,'cleared','b1',1050.0,1790001050.0,'xid','gpu/0000:11:00.0','95','{"by":"reset, reboot or replacement"}');
INSERT INTO "events" VALUES(31,1,'cleared','b1',1055.0,1790001055.0,'xid','gpu/0000:12:00.0','95','{"by":"reset, reboot or replacement"}');
INSERT INTO "events" VALUES(32,1,'cleared','b1',1055.0,1790001055.0,'xid','gpu/0000:13:00.0','95','{"by":"reset, reboot or replacement"}');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('created','1795381165.9961472');
INSERT INTO "meta" VALUES('era','1');
INSERT INTO "meta" VALUES('kernel_log_boot_id','b1');
INSERT INTO "meta" VALUES('kernel_log_sequence','9');
INSERT INTO "meta" VALUES('machine','{"dmi": "4c4c4544-0000-0000-0000-000000000001", "machine_id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "instance": ""}');
INSERT INTO "meta" VALUES('schema','1.0');
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',32);
COMMIT;
