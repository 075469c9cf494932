-- After 1.0.sql, as 23d4377 wrote it: an operator stopped dstack's agent by an exclusion, which ended when somebody started it;
-- then the agent was stopped for the failure, and its start has not been done.
INSERT INTO "events" VALUES(12,1,'ordered','b1',20.0,1790000020.0,'','','','{"order":"exclude","reason":"gpuwarden: operator al: rack move","by":"al"}');
INSERT INTO "events" VALUES(13,1,'intended','b1',20.0,1790000020.0,'','','','{"intent":"exclude","actuator":"dstack_shim","why":"operator","reason":"gpuwarden: operator al: rack move","key":"dstack_shim:exclude:b1:20.000","since":0.0,"force":true}');
INSERT INTO "events" VALUES(14,1,'outcome','b1',21.0,1790000021.0,'','','','{"intent":"exclude","actuator":"dstack_shim","why":"operator","key":"dstack_shim:exclude:b1:20.000","result":"done","text":""}');
INSERT INTO "events" VALUES(15,1,'excluded','b1',21.0,1790000021.0,'','','','{"actuator":"dstack_shim","why":"operator","reason":"gpuwarden: operator al: rack move","since":1790000021.0}');
INSERT INTO "events" VALUES(16,1,'started','b1',25.0,1790000025.0,'','','','{}');
INSERT INTO "events" VALUES(17,1,'lifted','b1',30.0,1790000030.0,'','','','{"actuator":"dstack_shim","why":"operator","reason":"gpuwarden: operator al: rack move","by":"lifted","nobody":false}');
INSERT INTO "events" VALUES(18,1,'intended','b1',400.0,1790000400.0,'','','','{"intent":"exclude","actuator":"dstack_shim","why":"failure","reason":"gpuwarden: xid 79","key":"dstack_shim:exclude:b1:400.000","since":0.0,"force":false}');
INSERT INTO "events" VALUES(19,1,'outcome','b1',401.0,1790000401.0,'','','','{"intent":"exclude","actuator":"dstack_shim","why":"failure","key":"dstack_shim:exclude:b1:400.000","result":"done","text":""}');
INSERT INTO "events" VALUES(20,1,'excluded','b1',401.0,1790000401.0,'','','','{"actuator":"dstack_shim","why":"failure","reason":"gpuwarden: xid 79","since":1790000401.0}');
INSERT INTO "events" VALUES(21,1,'intended','b1',500.0,1790000500.0,'','','','{"intent":"restore","actuator":"dstack_shim","why":"failure","reason":"gpuwarden: xid 79","key":"dstack_shim:restore:b1:500.000","since":1790000401.0,"force":false}');
