# Handles Azure Scheduled Events, on Azure and with Forewarn. PowerShell 5.1 or 7, no modules.
#
# The program polls. For each event that names this VM, it prepares, approves, and reports the start and the end.
# Ctrl-C ends it. PowerShell cannot catch SIGTERM, which ends it at once.

param(
    [string] $Endpoint = $env:FOREWARN_ENDPOINT, # empty: Azure's address
    [string] $Name = '',                         # of this VM in events; empty: ask the endpoint
    [string] $Run = '',                          # command that prepares this VM
    [double] $Interval = 1,                      # seconds between polls
    [double] $Timeout = 10,                      # seconds for a response
    [double] $Repeat = 60                        # seconds until the same approval again
)
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'
Add-Type -AssemblyName System.Net.Http

$EventsPath = '/metadata/scheduledevents?api-version=2020-07-01'
$NamePath = '/metadata/instance/compute/name?api-version=2021-02-01&format=text'
$KnownTypes = 'Freeze', 'Reboot', 'Redeploy', 'Preempt', 'Terminate'
$FirstTimeout = 130 # seconds; on Azure, the response to the first GET can take two minutes
$OlderSeconds = 10 # a lower incarnation that stays this long is a new count; before, it may be an old document
if (-not $Endpoint) { $Endpoint = 'http://169.254.169.254' }

$handler = [System.Net.Http.HttpClientHandler]::new()
$handler.UseProxy = $false
$handler.AllowAutoRedirect = $false
$http = [System.Net.Http.HttpClient]::new($handler)
$http.Timeout = [System.Threading.Timeout]::InfiniteTimeSpan # each request has its own
$clock = [System.Diagnostics.Stopwatch]::StartNew()
$tracked = @{} # events of this VM by EventId
$script:incarnation = -1 # of the last document; -1: none yet
$script:olderSince = $null
$script:problem = '' # the last one, so that it is reported once

function Write-Step([string] $step, $one, [string] $detail = '') {
    if ($detail) { $detail = ": $detail" }
    [Console]::Out.WriteLine("$step $($one.EventType) $($one.EventId)$detail")
}

# Prints a problem when it begins, not at each poll. An empty one means success.
function Write-Problem([string] $method, [string] $found) {
    $line = "retrying ${method}: $found"
    if ($found -and $line -cne $script:problem) { [Console]::Error.WriteLine($line) }
    if ($found) { $script:problem = $line }
    elseif ($script:problem.StartsWith($line, [StringComparison]::Ordinal)) { $script:problem = '' }
}

# Returns the text of a response with status 200; $null after any failure, which the next poll retries.
function Send-Request([string] $method, [string] $path, [string] $body = '') {
    $seconds = $Timeout
    if ($script:incarnation -lt 0) { $seconds = [Math]::Max($Timeout, $FirstTimeout) }
    $limit = [System.Threading.CancellationTokenSource]::new([TimeSpan]::FromSeconds($seconds))
    $text = $null
    $found = ''
    try {
        $verb = [System.Net.Http.HttpMethod]::new($method)
        $request = [System.Net.Http.HttpRequestMessage]::new($verb, $Endpoint.TrimEnd('/') + $path)
        $request.Headers.Add('Metadata', 'true')
        if ($body) {
            $request.Content = [System.Net.Http.StringContent]::new($body, [Text.Encoding]::UTF8, 'application/json')
        }
        $task = $http.SendAsync($request, $limit.Token)
        while (-not ([IAsyncResult] $task).AsyncWaitHandle.WaitOne(200)) { } # so that Ctrl-C works
        $response = $task.GetAwaiter().GetResult()
        $text = $response.Content.ReadAsStringAsync().GetAwaiter().GetResult()
        if ([int] $response.StatusCode -ne 200) { $found = "status $([int] $response.StatusCode)" }
        $response.Dispose()
    }
    catch {
        $found = if ($limit.IsCancellationRequested) { 'timeout' } else { $_.Exception.GetBaseException().Message }
    }
    finally {
        $limit.Dispose()
    }
    Write-Problem $method $found
    if ($found) { return $null }
    return $text
}

# Returns the current document; $null if there is none.
function Get-Document {
    $text = Send-Request 'GET' $EventsPath
    if ($null -eq $text) { return $null }
    try {
        $document = ConvertFrom-Json $text
        $valid = ($document.DocumentIncarnation -is [int] -or $document.DocumentIncarnation -is [long])
        $valid = $valid -and $document.Events -is [array]
        foreach ($one in $document.Events) { # strict mode: a missing property is an error
            $valid = $valid -and $one.EventId -is [string] -and $one.EventType -is [string]
            $valid = $valid -and $one.EventStatus -is [string] -and $one.Resources -is [array]
            $valid = $valid -and $null -ne $one.NotBefore
        }
    }
    catch {
        $valid = $false
    }
    if ($valid) { return $document }
    Write-Problem 'GET' 'malformed document'
    return $null
}

# Returns whether to read the document: it has another incarnation than the last one, and is not an old one.
function Test-New([long] $number) {
    if ($number -lt $script:incarnation) {
        if ($null -eq $script:olderSince) { $script:olderSince = $clock.Elapsed.TotalSeconds }
        if ($clock.Elapsed.TotalSeconds - $script:olderSince -lt $OlderSeconds) { return $false }
    }
    $changed = $number -ne $script:incarnation
    $script:incarnation = $number
    $script:olderSince = $null
    return $changed
}

function Update-Events($events) {
    $mine = @($events | Where-Object { $_.Resources -ccontains $Name })
    foreach ($id in @($tracked.Keys)) {
        if (@($mine | ForEach-Object { $_.EventId }) -ccontains $id) { continue }
        Write-Step 'ended' $tracked[$id].Event
        $tracked.Remove($id)
    }
    foreach ($one in $mine) {
        $known = $tracked[$one.EventId]
        if ($known -and $known.Event.EventStatus -ceq $one.EventStatus) { continue }
        $known = @{ Event = $one; Ready = $false; Sent = [double]::NegativeInfinity }
        $tracked[$one.EventId] = $known
        if ($KnownTypes -cnotcontains $one.EventType) { Write-Step 'ignored' $one 'unknown event type' }
        elseif ($one.EventStatus -ceq 'Started') { Write-Step 'started' $one }
        elseif ($one.EventStatus -ceq 'Scheduled') {
            Write-Step 'scheduled' $one "not before $($one.NotBefore)"
            $known.Ready = Invoke-Preparation $one
        }
    }
}

# Prepares this VM, once for each event. Returns whether to approve the event.
function Invoke-Preparation($one) {
    if ($Run) {
        # The shell takes the command from its environment, so that nothing needs quotes.
        $start = [System.Diagnostics.ProcessStartInfo]::new('/bin/sh', '-c "eval \"$EVENT_COMMAND\""')
        if ([IO.Path]::DirectorySeparatorChar -eq '\') {
            $start = [System.Diagnostics.ProcessStartInfo]::new('cmd.exe', '/d /c %EVENT_COMMAND%')
        }
        $start.UseShellExecute = $false
        $start.EnvironmentVariables['EVENT_COMMAND'] = $Run
        $start.EnvironmentVariables['EVENT_ID'] = $one.EventId
        $start.EnvironmentVariables['EVENT_TYPE'] = $one.EventType
        $start.EnvironmentVariables['EVENT_NOT_BEFORE'] = $one.NotBefore
        $command = [System.Diagnostics.Process]::Start($start)
        while (-not $command.WaitForExit(200)) { }
        if ($command.ExitCode -ne 0) {
            Write-Step 'not approved' $one "the command ended with $($command.ExitCode)"
            return $false
        }
    }
    Write-Step 'prepared' $one
    if ($one.Resources.Count -eq 1) { return $true }
    Write-Step 'not approved' $one 'it names other VMs too' # an approval would start the event for all of them
    return $false
}

# Approves prepared events; again if an event is still Scheduled after a while.
function Approve-Events {
    foreach ($known in @($tracked.Values)) {
        $isDue = $clock.Elapsed.TotalSeconds - $known.Sent -ge $Repeat
        if (-not ($known.Ready -and $known.Event.EventStatus -ceq 'Scheduled' -and $isDue)) { continue }
        $body = ConvertTo-Json -Compress -Depth 3 @{ StartRequests = @(@{ EventId = $known.Event.EventId }) }
        if ($null -eq (Send-Request 'POST' $EventsPath $body)) { continue }
        $known.Sent = $clock.Elapsed.TotalSeconds
        Write-Step 'approved' $known.Event
    }
}

while (-not $Name) {
    $Name = "$(Send-Request 'GET' $NamePath)".Trim()
    if (-not $Name) { Start-Sleep -Milliseconds ($Interval * 1000) }
}
[Console]::Out.WriteLine("polling $Endpoint as $Name")
while ($true) {
    $document = Get-Document
    if ($null -ne $document) {
        if (Test-New $document.DocumentIncarnation) { Update-Events $document.Events }
        Approve-Events
    }
    Start-Sleep -Milliseconds ($Interval * 1000)
}
