"""slurm.conf of the Slurm that tests run, but for its nodes and partitions.

config_overrides lets a node have more CPUs than this machine; cred_expire=5 lets a requeued job start after 6 s. MinJobAge keeps a job that
has ended for longer than a test takes on a busy machine: a job that is forgotten has no state that a test could wait for.
"""

CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=5,bf_interval=5,nohold_on_prolog_fail
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService={return_to_service}
KillWait=2
MinJobAge=3600
SlurmdTimeout={slurmd_timeout}
SlurmdParameters=config_overrides
GresTypes=gpu
"""
