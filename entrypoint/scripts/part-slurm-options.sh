# Most sites want some of these: remove one #. SBATCH_* of your shell win: env | grep SBATCH_
#SBATCH --partition=@PARTITION?gpu@
#SBATCH --account=@ACCOUNT?my_project@
#SBATCH --qos=@QOS?normal@
#SBATCH --constraint=@CONSTRAINT?a100@ # nodes with this feature
#SBATCH --reservation=@RESERVATION?course@
#SBATCH --mail-type=@MAIL_TYPE?END,FAIL@@MAIL_USER:@ # and --mail-user=ADDRESS, if your site needs it
